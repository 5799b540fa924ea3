"""`psdrl sweep` and `psdrl reproduce`: many training runs, on one machine or a cluster, none lost and none repeated."""
