package kernel

// panel returns the outputs of panel i of the weights.
func (c *correlate[T]) panel(i int) (from, to int) {
	n := tilesOf(c.outputs, c.kernel.Rows())
	return i * c.outputs / n, (i + 1) * c.outputs / n
}

// pack packs a panel of weights. The blocks of the inner dimension are consecutive, and within a
// block its panels are.
func (c *correlate[T]) pack(unit int) {
	panels := tilesOf(c.outputs, c.kernel.Rows())
	k := &c.correlations[unit/panels/c.groups]
	group := unit / panels % c.groups
	from, to := c.panel(unit % panels)
	rows, depth, inner := to-from, c.depth(k), k.inner()
	packed := c.packed[k.packed+group*c.outputs*depth:][:c.outputs*depth]
	weights := c.weights[group*c.weightElements+k.weight+from*k.weightOutput:]
	for begin := 0; begin < depth; begin += convDepth(c.kernel) {
		deep := min(convDepth(c.kernel), depth-begin)
		dst := packed[begin*c.outputs+from*deep:][:deep*rows]
		for i := begin; i < begin+deep; i++ {
			line := dst[:rows]
			dst = dst[rows:]
			if i == inner {
				copy(line, c.bias[group*c.outputs+from:])
				continue
			}
			tap, channel := i/k.channels, i%k.channels
			src := weights[channel*k.weightChannel+tap/k.taps[1]*k.weightTap[0]+tap%k.taps[1]*k.weightTap[1]:]
			for j := range line {
				line[j] = src[j*k.weightOutput]
			}
		}
	}
}

// fillImage sets a group of an image of out to the bias, or to 0.
func (c *correlate[T]) fillImage(unit int) {
	group := unit % c.groups
	for i := range c.outputs {
		channel := c.out[(unit*c.outputs+i)*c.outPixels:][:c.outPixels]
		clear(channel)
		if c.bias != nil {
			for j := range channel {
				channel[j] = c.bias[group*c.outputs+i]
			}
		}
	}
}

// compute computes a unit of strips.
func (c *correlate[T]) compute(unit int) {
	i := len(c.correlations) - 1
	for c.correlations[i].unit > unit {
		i--
	}
	k := &c.correlations[i]
	slot, tmp := c.slots.take()
	from := (unit - k.unit) * k.perUnit
	for strip := from; strip < min(from+k.perUnit, c.stripsOf(k)); strip++ {
		c.strip(k, tmp, strip)
	}
	c.slots.give(slot)
}

// strip computes a strip, which is a few panels of positions.
func (c *correlate[T]) strip(k *correlation, tmp []T, strip int) {
	image, group, places := 0, strip/k.strips, k.places()
	if k.joined {
		places *= c.images
	} else {
		image, group = group/c.groups, group%c.groups
	}
	strip %= k.strips
	width, depth := c.kernel.Columns(), c.depth(k)
	stride := c.groups * c.inElements
	in := c.in[min(len(c.in), image*stride+group*c.inElements):]
	packed := c.packed[k.packed+group*c.outputs*depth:]
	from := strip * c.panels * width
	n := min(c.panels*width, places-from)

	out, crs := c.out[(image*c.groups+group)*c.outputs*c.outPixels:], c.outPixels
	at := from
	if k.joined {
		out = tmp[c.stripElements:]
		crs, at = c.panels*width, 0
	}
	for begin := 0; begin < depth; begin += convDepth(c.kernel) {
		deep := min(convDepth(c.kernel), depth-begin)
		for j := 0; j < n; j += width {
			placesPanel(c.kernel, &k.sight, tmp[j*deep:], in, stride, begin, deep, from+j, min(width, n-j))
		}
		for i := range tilesOf(c.outputs, c.kernel.Rows()) {
			row, next := c.panel(i)
			a := packed[begin*c.outputs+row*deep:]
			for j := 0; j < n; j += width {
				c.kernel.Tile(next-row, min(width, n-j), out[row*crs+at+j:], crs, a, 1, next-row, tmp[j*deep:], deep, begin > 0)
			}
		}
	}
	if k.joined {
		c.place(k, out, group, from, n)
	}
}

// place copies a tile of joined images to out.
func (c *correlate[T]) place(k *correlation, tile []T, group, from, n int) {
	crs := c.panels * c.kernel.Columns()
	for at := 0; at < n; {
		run := k.piece(from+at, n-at)
		to := c.out[(run.image*c.groups+group)*c.outputs*c.outPixels+k.first+run.row*k.next[0]+run.column*k.next[1]:]
		for i := range c.outputs {
			line, channel := tile[i*crs+at:][:run.n], to[i*c.outPixels:]
			if k.next[1] == 1 {
				copy(channel, line)
				continue
			}
			for j, v := range line {
				channel[j*k.next[1]] = v
			}
		}
		at += run.n
	}
}
