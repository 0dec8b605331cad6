"""Programs that use mongoq as its users do, each one runnable: ``python -m examples.flights``."""
