// Shared by the kernels of recurrent layers.

#pragma once

#include "kernels.h"

static __device__ double sigmoid(double d) {
	if (d >= 0)
		return 1 / (1 + exp(-d));
	d = exp(d);
	return d / (1 + d);
}

template <class T> static __device__ double element(const T *s, u64 i) { return s ? (double)s[i] : 0; }

// lstm_step_grad replaces gates by the gradients of their sums. d is the gradient of the state,
// carry that of the cell state, and before and after are the cell states. It returns the gradient
// of the cell state before.
static __device__ double lstm_step_grad(double (&gates)[4], double d, double carry, double before, double after) {
	double in = gates[0], forget = gates[1], cell = gates[2], out = gates[3], s = tanh(after);
	double dc = carry + d * out * ((1 - s) * (1 + s));
	gates[0] = dc * cell * in * (1 - in);
	gates[1] = dc * before * forget * (1 - forget);
	gates[2] = dc * in * ((1 - cell) * (1 + cell));
	gates[3] = d * s * out * (1 - out);
	return dc * forget;
}
