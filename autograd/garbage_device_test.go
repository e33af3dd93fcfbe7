package autograd_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
)

// BenchmarkAboveTheDevice measures the host's part above the driver: a called step of models of
// [BenchmarkModel] on a device that runs nothing.
func BenchmarkAboveTheDevice(b *testing.B) {
	for _, m := range []struct {
		name   string
		model  func(in *nn.Initializer) runModel
		input  []int
		tokens bool
	}{
		{"mlp", garbageMLP(512, 512), []int{128, 784}, false},
		{"cnn", garbageCNN(32), []int{64, 1, 28, 28}, false},
		{"gpt", garbageGPT(64), []int{4, 32}, true},
	} {
		for _, how := range []string{"called", "reset"} {
			b.Run(m.name+"/"+how, func(b *testing.B) {
				bn := tapetest.OpenIdle(b)
				in := nn.Init(bn.Ctx, bn.RT, nn.Seed(1))
				model := m.model(in)
				opt := nn.Own(in, optim.NewAdamW(nn.ParametersOf(model), optim.AdamConfig{LR: new(1e-3)}))
				require.NoError(b, in.Err())
				defer func() { require.NoError(b, in.Close()) }()
				benchmarkSteps(b, bn, model, opt, m.input, m.tokens, how)
			})
		}
	}
}
