package autograd_test

import (
	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

func (r *referenceRun) pooling() tensor.PoolingConfig {
	return tensor.PoolingConfig{Kernel: r.ints("kernel_size"), Stride: r.ints("stride"), Padding: r.ints("padding"), Dilation: r.ints("dilation"),
		Ceil: r.bool("ceil_mode", false), ExcludePadding: !r.bool("count_include_pad", true), Divisor: r.int("divisor_override", 0)}
}

func init() {
	referenceOps["max_pool2d"] = func(r *referenceRun) *autograd.Variable { return r.tape.MaxPool2d(r.in("input"), r.pooling()) }
	referenceOps["avg_pool2d"] = func(r *referenceRun) *autograd.Variable { return r.tape.AvgPool2d(r.in("input"), r.pooling()) }
	// None leaves a dimension as it is.
	referenceOps["adaptive_avg_pool2d"] = func(r *referenceRun) *autograd.Variable {
		if list, ok := r.Args["output_size"].([]any); ok {
			for i, n := range list {
				if n == nil {
					list[i] = -1.0
				}
			}
		}
		size := r.ints("output_size")
		return r.tape.AdaptiveAvgPool2d(r.in("input"), size...)
	}
}
