"""Who may ask for what, how often and how much: keys, rate limits, hosts and origins, safe headers."""
