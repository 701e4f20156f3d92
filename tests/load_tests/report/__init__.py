"""Reports: pictures and pages."""
