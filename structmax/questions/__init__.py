"""Questions to a structure: one public function in a file, or a few that belong together."""
