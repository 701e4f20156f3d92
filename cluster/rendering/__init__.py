"""Files that run a cluster elsewhere, all made from one cluster file."""
