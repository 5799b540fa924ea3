"""Packages of PSDRL: `kernels/` at the top level is installed as `psdrl.kernels`, never as `kernels`."""

from setuptools import setup

setup(
    packages=["psdrl", "psdrl.envs", "psdrl.kernels", "psdrl.kernels.lookahead"],
    package_dir={"psdrl": "psdrl", "psdrl.kernels": "kernels"},
)
