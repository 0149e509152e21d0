# Installs the packages of a requirements.txt for Lambda. The makefiles of functions and layers include this file.
#
#     ARCH    arm64 (the default) or x86_64, as Architectures in template.yaml
#     PYTHON  3.13 (the default), 3.12 or 3.11, as Runtime in template.yaml
#
# Set them in the environment (ARCH=x86_64 sam build). The Python and the architecture of this machine do not matter:
# pip takes packages built for Lambda, and none that would have to be compiled here. Two builds give the same files.

ARCH   ?= arm64
PYTHON ?= 3.13

machine := $(patsubst arm64,aarch64,$(ARCH))
version := $(patsubst python%,%,$(PYTHON))

# The C library of Lambda: 2.26 (Amazon Linux 2) up to Python 3.11, then 2.34 (Amazon Linux 2023).
glibc := 2_17 2_24 2_26 $(if $(filter 3.11,$(version)),,2_27 2_28 2_31 2_34)

# Install the requirements.txt beside the makefile into a directory: $(call install,DIRECTORY)
define install
	$(if $(filter aarch64 x86_64,$(machine)),,$(error ARCH is $(ARCH); it must be arm64 or x86_64))
	$(if $(filter 3.11 3.12 3.13,$(version)),,$(error PYTHON is $(PYTHON); it must be 3.11, 3.12 or 3.13))
	python3 -m pip install --quiet --disable-pip-version-check --no-compile --only-binary=:all: \
	    --implementation cp --python-version $(version) \
	    --platform manylinux2014_$(machine) $(foreach each,$(glibc),--platform manylinux_$(each)_$(machine)) \
	    --requirement requirements.txt --target "$(1)"
endef
