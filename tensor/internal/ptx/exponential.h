// Exponentials of differences, in double.

#pragma once

#include "kernels.h"

// exp(r) is 1 + r + r*r*(exp_terms[0] + exp_terms[1]*r + …) within 2^-55 for r between -ln(2)/2 and
// ln(2)/2. The terms interpolate it at Chebyshev's points.
__constant__ double exp_terms[] = {0x1.0000000000001p-1, 0x1.5555555555556p-3, 0x1.5555555553d68p-5, 0x1.11111111109b5p-7, 0x1.6c16c17889ef1p-10,
	0x1.a01a01a7c2efep-13, 0x1.a019b9149a41cp-16, 0x1.71de0db2f6b19p-19, 0x1.28917c89a43a7p-22, 0x1.af389ecfc4b9cp-26};

// exponentials sets each e to exp(v - top), where v is at most top or one of them is NaN, or to
// about 1e-304 if that is more. They are computed in steps, so that a thread does not wait for one
// result, and loads a constant once for all.
template <int n> static __device__ void exponentials(double (&e)[n], const float (&v)[n], float top) {
	const double round = 0x1.8p52; // a sum with it has a whole number in its lower bits
	double r[n];
	int power[n];
#define ALL _Pragma("unroll") for (int k = 0; k < n; k++)
	ALL r[k] = v[k] - top < -700 ? -700 : (double)v[k] - (double)top;
	ALL e[k] = fma(r[k], 0x1.71547652b82fep0, round); // 1/ln(2)
	ALL power[k] = __double2loint(e[k]);
	ALL e[k] -= round;
	ALL r[k] = fma(e[k], -0x1.62e42fefa39efp-1, r[k]);
	ALL r[k] = fma(e[k], -0x1.abc9e3b39803fp-56, r[k]); // the rest of ln(2)
	ALL e[k] = exp_terms[9];
#pragma unroll
	for (int i = 8; i >= 0; i--)
		ALL e[k] = fma(e[k], r[k], exp_terms[i]);
	ALL e[k] = fma(e[k], r[k], 1.0);
	ALL e[k] = fma(e[k], r[k], 1.0);
	ALL e[k] = v[k] - top == v[k] - top ? __hiloint2double(__double2hiint(e[k]) + (power[k] << 20), __double2loint(e[k])) : (double)NAN;
#undef ALL
}
