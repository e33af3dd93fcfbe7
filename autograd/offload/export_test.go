package offload

import (
	"github.com/cistern-ml/cistern/autograd"
)

// What tests use of the package that programs can't, by the file that it is of.

// parameters.go

var GroupOf = groupOf

func (g *parameterGroup) Members() []*autograd.Parameter { return g.params }
