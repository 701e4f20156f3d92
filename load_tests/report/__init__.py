"""The report of load tests: pictures as SVG, pages of HTML that need no network."""
