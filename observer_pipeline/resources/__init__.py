"""What assets work with: the home folder, the warehouse, MLflow, Phoenix, and the services models are rolled onto."""
