"""What the tests of charts read in a drawing."""

import xml.etree.ElementTree as ET


def figure_of(chart):
    return ET.fromstring(chart)


def texts(chart, name):
    return [" ".join("".join(node.itertext()).split()) for node in figure_of(chart).iter(name)]
