"""Keras `fit` of two epochs of 12 batches, each with a validation of 4, and one checkpoint."""

import tensorflow as tf


def item(number):
    return tf.ones(2) * tf.cast(tf.strings.length(tf.io.read_file("data.bin")), tf.float32), number


data = tf.data.Dataset.range(48).map(item).batch(4)
held_out = tf.data.Dataset.range(16).map(item).batch(4)
model = tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(data, epochs=2, validation_data=held_out, verbose=0)
model.save("model.keras")
