# Builds functions, and installs the packages of a requirements.txt for Lambda. The makefiles of functions and layers
# include this file.
#
#     ARCH    arm64 (the default) or x86_64, as in Architectures of template.yaml
#     PYTHON  3.13 (the default), 3.14, 3.12 or 3.11, as in Runtime of template.yaml
#
# Set both in the environment: ARCH=x86_64 sam build. The Python and the architecture of this machine do not matter:
# pip installs the builds of the packages for Lambda, and compiles none. Two builds on a machine give the same files.

ARCH   ?= arm64
PYTHON ?= 3.13

machine := $(patsubst arm64,aarch64,$(ARCH))
version := $(patsubst python%,%,$(PYTHON))

# Lambda's C library is glibc 2.26 for Python 3.11 (Amazon Linux 2), and 2.34 from Python 3.12 on (Amazon Linux 2023).
glibc := 2_17 2_24 2_26 $(if $(filter 3.11,$(version)),,2_27 2_28 2_31 2_34)

# $(call install,DIRECTORY,PLACE) installs requirements.txt into DIRECTORY, which Lambda puts at PLACE. Commands and
# records of the installation are removed: Lambda does not use them, and they differ between machines. Bytecode needs
# the Python of Lambda on this machine; without it, the build is complete, but each cold start takes longer.
define install
	$(if $(filter aarch64 x86_64,$(machine)),,$(error ARCH is "$(ARCH)". It must be arm64 or x86_64))
	$(if $(filter 3.11 3.12 3.13 3.14,$(version)),,$(error PYTHON is "$(PYTHON)". It must be 3.11, 3.12, 3.13 or 3.14))
	@python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore \
	    --no-compile --only-binary=:all: --implementation cp --python-version $(version) \
	    --platform manylinux2014_$(machine) $(foreach each,$(glibc),--platform manylinux_$(each)_$(machine)) \
	    --requirement requirements.txt --target "$(1)"
	@rm -rf "$(1)/bin"
	@find "$(1)" -path '*.dist-info/*' \( -name RECORD -o -name INSTALLER -o -name REQUESTED -o -name direct_url.json \) \
	    -delete
	@if python$(version) -c "" 2>/dev/null; then \
	    PYTHONHASHSEED=0 python$(version) -m compileall -qq --invalidation-mode unchecked-hash \
	        -s "$(1)" -p "$(2)" "$(1)"; \
	    echo "$(MAKECMDGOALS): packages and bytecode for Python $(version) on $(ARCH)"; \
	else \
	    echo "$(MAKECMDGOALS): packages for Python $(version) on $(ARCH), without bytecode: no python$(version) here"; \
	fi
endef

# $(build_function) copies the directory of a function into ARTIFACTS_DIR, subdirectories and data files included, after
# the packages of its requirements.txt, if there is one. Links are followed; hidden files and tests are left out.
define build_function
	$(if $(wildcard requirements.txt),$(call install,$(ARTIFACTS_DIR),/var/task))
	@for each in *; do case "$$each" in \
	    Makefile | requirements.txt | tests | __pycache__) ;; \
	    *) cp -RL "$$each" "$(ARTIFACTS_DIR)/" || exit 1; \
	       find "$(ARTIFACTS_DIR)/$$each" -name __pycache__ -type d -prune -exec rm -rf {} + ;; \
	esac; done
endef

# $(call build_with,PART) does the same, and adds a copy of tarry with a part that the tarry layer leaves out. Lambda
# imports from the function before its layers, so this copy is the one in use.
tarry := $(dir $(lastword $(MAKEFILE_LIST)))layers/tarry/python/tarry
define build_with
	$(build_function)
	cp -R "$(tarry)" "$(ARTIFACTS_DIR)/"
	python3 -I "$(tarry)/tools/common/strip.py" "$(ARTIFACTS_DIR)/tarry" $(1)
endef
