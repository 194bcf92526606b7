"""What is judged by default, its adapters, and the catalogue of defects."""
