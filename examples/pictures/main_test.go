package main

import (
	"image"
	"image/color"
	"image/png"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRun learns noisy pictures of two sizes whose upper or lower half is red.
func TestRun(t *testing.T) {
	folder := t.TempDir()
	r := rand.New(rand.NewPCG(1, 1))
	for i := range 200 {
		class := []string{"above", "below"}[i%2]
		img := image.NewRGBA(image.Rect(0, 0, 20+i%3*20, 40))
		for k := range img.Rect.Dx() * 40 {
			c := color.RGBA{uint8(r.IntN(100)), uint8(r.IntN(100)), uint8(r.IntN(100)), 255}
			if y := k % 40; y/20 == i%2 {
				c.R += 100
			}
			img.Set(k/40, k%40, c)
		}
		require.NoError(t, os.MkdirAll(filepath.Join(folder, class), 0o755))
		f, err := os.Create(filepath.Join(folder, class, strconv.Itoa(i)+".png"))
		require.NoError(t, err)
		require.NoError(t, png.Encode(f, img))
		require.NoError(t, f.Close())
	}
	var out strings.Builder
	accuracy, err := run(t.Context(), "host", os.DirFS(folder), 10, &out)
	require.NoError(t, err)
	require.Greater(t, accuracy, 0.95, out.String())
	require.Contains(t, out.String(), "accuracy on 40 held-out pictures: ")
	require.NotContains(t, out.String(), "epoch 10:", "it ends early")
	t.Log(out.String())

	// An error names the file, or the number of files.
	require.NoError(t, os.WriteFile(filepath.Join(folder, "above", "0.png"), []byte("no picture"), 0o644))
	_, err = run(t.Context(), "host", os.DirFS(folder), 10, &out)
	require.ErrorContains(t, err, "above/0.png: png: invalid format")
	_, err = run(t.Context(), "host", os.DirFS(t.TempDir()), 10, &out)
	require.ErrorContains(t, err, "0 PNG files in 0 subfolders: ")
	_, err = run(t.Context(), "toaster", os.DirFS(folder), 10, &out)
	require.ErrorContains(t, err, "toaster")
}

// TestShift: all pixels move by the same distance, up to 2.
func TestShift(t *testing.T) {
	var p picture
	for c := range p.Pixels {
		p.Pixels[c][1][9] = 1
	}
	r := rand.New(rand.NewPCG(1, 1))
	seen := map[[2]int]bool{}
	for range 500 {
		moved, err := shift(p, r)
		require.NoError(t, err)
		require.Equal(t, moved.Pixels[0], moved.Pixels[2])
		for k := range side * side {
			if moved.Pixels[0][k/side][k%side] == 1 {
				seen[[2]int{(k/side+side+1)%side - 2, k%side - 9}] = true
			}
		}
	}
	require.Len(t, seen, 25)
	for at := range seen {
		require.LessOrEqual(t, max(at[0], -at[0], at[1], -at[1]), 2)
	}
}
