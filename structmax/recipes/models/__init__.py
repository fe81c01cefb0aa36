"""Networks that recipes share."""
