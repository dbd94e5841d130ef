"""From a corpus on disk to exact sums, on the CPU or on GPUs."""
