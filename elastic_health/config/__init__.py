"""The one YAML file: its model, its loading, its mistakes."""
