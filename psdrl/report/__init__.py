"""`psdrl report`: runs of any kind to a page, figures and tables, beside the numbers of the paper."""
