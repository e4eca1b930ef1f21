"""torchtitan, by its TOML files (to 0.2) and its Python configurations (from 0.3)."""
