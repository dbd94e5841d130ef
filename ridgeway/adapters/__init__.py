"""Ways into others' gateways and frameworks; each module needs the package of its name."""
