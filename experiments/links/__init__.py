"""Slow networks inside one machine, and the workers that train and measure behind them."""
