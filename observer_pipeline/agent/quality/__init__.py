"""The data quality report: is a set of labeled traces balanced, without leaks and duplicates, and not guessable?"""
