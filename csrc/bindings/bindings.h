// The functions that module.cc calls: each adds the definitions of one file to the module.
#pragma once

#include <pybind11/pybind11.h>

void bind_errors(pybind11::module_& module);
void bind_config(pybind11::module_& module);
void bind_kv(pybind11::module_& module);
void bind_masks(pybind11::module_& module);
void bind_engine(pybind11::module_& module);
void bind_files(pybind11::module_& module);
void bind_quantise(pybind11::module_& module);
void bind_cores(pybind11::module_& module);
void bind_cuda(pybind11::module_& module);
