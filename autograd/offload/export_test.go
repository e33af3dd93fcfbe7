package offload

import (
	"github.com/cistern-ml/cistern/autograd"
)

// Unexported parts of the package for tests, by their files.

// parameters.go

var GroupOf = groupOf

func (g *parameterGroup) Members() []*autograd.Parameter { return g.params }
