package report

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/browsertest"
	"github.com/cistern-ml/cistern/memcache"
)

// TestLook: pages of a program with steps, of a failed request, and of PyTorch's recordings are
// readable on a desk and on a phone, in the light and the dark theme.
func TestLook(t *testing.T) {
	browsertest.Program(t)
	training := newLedger(t, memcache.Config{MemoryLimit: 64 << 20}, 2, everything)
	training.silent = true
	mlp(training, 80, 1000)
	l, _, oom := failing(t)
	for name, reports := range map[string][]*Report{
		"training": {training.report(Options{WhatIf: []string{"expandable_segments:True"}, Layers: []Layer{{Type: "gpt"}, {Name: "block", Type: "Block", Output: "float32[64,128]"},
			{Name: "block.0.linear", Type: "Linear", Parameters: 1000, ParameterBytes: 4096, ActivationBytes: 1 << 30}}})},
		"out of memory": {l.report(Options{OutOfMemory: oom})},
		"resnet":        readFile(t, recordings+"resnet50.jsonl.gz", Options{Suggest: true}),
		"nothing":       {newLedger(t, memcache.Config{}, 1, everything).report(Options{})},
	} {
		t.Run(name, func(t *testing.T) {
			var page bytes.Buffer
			require.NoError(t, Write(&page, reports...))
			file := filepath.Join(t.TempDir(), "report.html")
			require.NoError(t, os.WriteFile(file, page.Bytes(), 0o600))
			browsertest.CheckLook(t, "file://"+file, `document.querySelector("main.ready:not([aria-busy])") !== null`)
		})
	}
}
