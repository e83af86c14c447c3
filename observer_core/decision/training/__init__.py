"""How decision models are trained, whatever their family: data, batches, the loop, LoRA (the last two need torch)."""
