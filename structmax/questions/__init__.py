"""Questions: one file each, with its public function and its gradient rule."""
