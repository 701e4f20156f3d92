"""Rules of choice that others have published, to be measured beside Kvist's own. One rule a file."""
