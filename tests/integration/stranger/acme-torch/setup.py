from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

setup(
    ext_modules=[CppExtension("acme_torch._C", ["src/acme_torch/device.cpp"], extra_compile_args=["-O0", "-g0"])],
    cmdclass={"build_ext": BuildExtension},
)
