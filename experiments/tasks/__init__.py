"""What is learnt, and by which model: data, models, losses and scores."""
