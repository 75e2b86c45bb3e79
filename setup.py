# SPDX-License-Identifier: Apache-2.0
"""Puts `gdnbench_capture.pth` beside the packages, and captures into a wheel; the rest is in pyproject.toml.

Python runs a .pth line at start-up. Ours looks at one environment variable, so that
`GDNBENCH_CAPTURE=STORE python anything.py` captures without a change to the program. Setuptools has no
declarative way to ship one: a wheel takes it as a file of the build folder, an editable install as a data
file.
"""

import glob
import os
import sys
import sysconfig

from setuptools import setup
from setuptools.command.build_py import build_py

PTH = "gdnbench_capture.pth"
SHIPPED = ("captures/README.md", "captures/wrong_kernel.py", "captures/*.zarr.zip", "suites/made.toml")
"""What gdnbench/shipped.py names, copied into a wheel below gdnbench/_shipped/."""


class BuildWithPth(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:
            site_packages = os.path.relpath(sysconfig.get_path("purelib"), sys.prefix)
            self.distribution.data_files = [(site_packages, [PTH])]
            self.run_command("install_data")
        else:
            self.copy_file(PTH, os.path.join(self.build_lib, PTH))
            for file in (file for pattern in SHIPPED for file in sorted(glob.glob(pattern))):
                copy = os.path.join(self.build_lib, "gdnbench", "_shipped", file)
                self.mkpath(os.path.dirname(copy))
                self.copy_file(file, copy)


setup(cmdclass={"build_py": BuildWithPth})
