package parallel_test

import (
	"testing"

	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/parallel"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
)

// TestDefaultsOfParallelArePyTorchs: options that are left out have the defaults that PyTorch 2.11
// documents.
func TestDefaultsOfParallelArePyTorchs(t *testing.T) {
	tapetest.RequireDefaults(t, "", []tapetest.Default{
		{Names: "Config", Python: "bucket_cap_mb=25, broadcast_buffers=True", Got: func(*tapetest.Bench, *nn.Initializer) string {
			return tapetest.Signature("bucket_cap_mb", parallel.DefaultBucketBytes>>20, "broadcast_buffers", !parallel.Config{}.LocalBuffers)
		}},
	})
}
