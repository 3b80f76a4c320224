"""The one YAML file: its form (`model`), reading with line numbers (`nodes`), all mistakes at once (`validate`)."""
