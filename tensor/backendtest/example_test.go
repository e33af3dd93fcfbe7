package backendtest_test

import (
	"testing"

	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/backendtest"
)

// Example is the whole test of a backend named "toy".
func Example() {
	_ = func(t *testing.T) { // func TestBackend(t *testing.T)
		backendtest.Run(t, func() (*tensor.Runtime, error) {
			return tensor.Open("host", tensor.Backend("toy"))
		})
	}
}
