# Refuses variables that the Makefile does not have: make sets any name, so that `make train train.epochs=3` would train
# without the key, and say nothing.

ifneq ($(NPROC),)
ifeq ($(filter gpu cpu auto,$(NPROC))$(shell expr '$(NPROC)' : '[1-9][0-9]*$$'),0)
$(error NPROC=$(NPROC): not a number of processes; write for instance NPROC=2)
endif
endif

# `make train train.epochs=3` sets a variable of make, which no command reads.
overrides := $(foreach name,$(.VARIABLES),$(if $(findstring command line,$(origin $(name))),$(name)))
keys := $(filter $(foreach letter,a b c d e f g h i j k l m n o p q r s t u v w x y z,$(letter)%),$(overrides))
ifneq ($(filter args,$(keys)),)
$(error args=$(args): write ARGS in capitals: make $(firstword $(MAKECMDGOALS)) ARGS="$(args)")
endif
ifneq ($(keys),)
$(error $(foreach key,$(keys),$(key)=$($(key))): keys go into ARGS; write make $(firstword $(MAKECMDGOALS)) \
  ARGS="$(strip $(ARGS) $(foreach key,$(keys),$(key)=$($(key))))")
endif

variables = ARGS BUNDLE CANDIDATES FILE NPROC OUT PLATFORM PYTHON RECIPE RELEASES RUN RUNS SEEDS SHELL STACK UV VENV
unknown := $(filter-out $(variables) $(keys) $(filter MAKE% -%,$(overrides)),$(overrides))
ifneq ($(unknown),)
$(error $(firstword $(unknown))=$($(firstword $(unknown))): no variable of this Makefile, which has $(variables); keys go \
  into ARGS, as in make $(firstword $(MAKECMDGOALS)) ARGS="train.epochs=3")
endif
