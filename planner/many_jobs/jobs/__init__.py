"""What every part of this wing speaks of: jobs, pools of devices, grants, and what a policy sees and answers."""
