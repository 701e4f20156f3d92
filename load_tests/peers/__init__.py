"""Other clusters beside Kvist on this machine: each in an environment of its own, on loopback, ended by pid."""
