"""A job on partly used machines: which free GPUs it gets, what scattering costs, when whole machines come free."""
