"""What finished runs say: summaries, figures, claims and the report."""
