"""Over which sites a job runs, with which parallelism, on which devices (SpiderFlow, section 4 and appendix A)."""
