package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestGenerated: the generated files match the tables.
func TestGenerated(t *testing.T) {
	for path, text := range files() {
		got, err := os.ReadFile(filepath.Join("..", "..", path))
		require.NoError(t, err)
		assert.Equal(t, string(text), string(got), "%s: run go generate ./tensor", path)
	}
}
