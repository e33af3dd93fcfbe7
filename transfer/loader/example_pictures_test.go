package loader_test

import (
	"fmt"
	"image/png"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"github.com/cistern-ml/cistern/transfer/loader"
)

const side = 8 // pixels that a picture is resized to

// pictures are the PNG files of a folder that has a subfolder for each class.
type pictures struct{ files, classes []string }

// picture is a sample: 3 colours of side × side pixels, normalised, and the number of the class.
type picture struct {
	Pixels []float32
	Class  int32
}

func (p pictures) Len() int { return len(p.files) }

func (p pictures) At(i int) (picture, error) {
	f, err := os.Open(p.files[i])
	if err != nil {
		return picture{}, err
	}
	defer f.Close()
	img, err := png.Decode(f)
	if err != nil {
		return picture{}, err
	}
	s := picture{make([]float32, 3*side*side), int32(slices.Index(p.classes, filepath.Dir(p.files[i])))}
	for k, r := 0, img.Bounds(); k < side*side; k++ {
		red, green, blue, _ := img.At(r.Min.X+k%side*r.Dx()/side, r.Min.Y+k/side*r.Dy()/side).RGBA()
		for c, v := range [3]uint32{red, green, blue} {
			s.Pixels[c*side*side+k] = (float32(v)/65535 - 0.5) / 0.25
		}
	}
	return s, nil
}

// augment mirrors half of the pictures, and moves each by up to a pixel.
func augment(p picture, r *rand.Rand) (picture, error) {
	mirror, dx, dy := r.IntN(2) == 1, r.IntN(3)-1, r.IntN(3)-1
	moved := make([]float32, len(p.Pixels))
	for k := range moved {
		c, y, x := k/(side*side), k/side%side+dy, k%side+dx
		if mirror {
			x = side - 1 - x
		}
		if x >= 0 && x < side && y >= 0 && y < side {
			moved[k] = p.Pixels[(c*side+y)*side+x]
		}
	}
	return picture{moved, p.Class}, nil
}

func ExampleBatcher_pictures() {
	folder := drawPictures("cats", "dogs")
	defer os.RemoveAll(folder)
	classes, _ := filepath.Glob(filepath.Join(folder, "*"))
	files, _ := filepath.Glob(filepath.Join(folder, "*", "*.png"))
	train, err := loader.NewBatcher(pictures{files, classes}, loader.BatcherConfig[picture]{
		Sampler: loader.Sampler{Batch: 4, Shuffle: true, Seed: 1}, Transform: augment,
	})
	check(err)
	fmt.Println(len(files), "pictures, bytes of a sample:", train.Fields)
	check(show[int32](train, 1, "classes %d\n"))
	// Output:
	// 10 pictures, bytes of a sample: [768 4]
	// classes [1 0 0 1]
	// classes [1 0 1 0]
	// classes [0 1]
}
