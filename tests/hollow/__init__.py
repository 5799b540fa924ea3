"""The CUDA build of torch on devices that compute nothing; see README.md."""
