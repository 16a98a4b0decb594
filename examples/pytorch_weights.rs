//! Convolves with the weights of a PyTorch layer, from a safetensors file.
//!
//! `cargo run --example pytorch_weights -p windowpane-examples`

use windowpane::{Activation, Conv, Device, FilterLayout, Layout, Tensor};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("model.safetensors");
    write_model(&file)?;

    let device = Device::best();
    let model = Tensor::read_safetensors(&device, &file)?;
    for (name, tensor) in &model {
        println!("{name:14}{:?} {}", tensor.dims(), tensor.dtype());
    }

    // PyTorch: Conv2d(3, 8, kernel_size=3, stride=2, padding=1), then ReLU. Its images are channels first, its weights
    // output channels, input channels, height, width.
    let conv = Conv::new(3)
        .stride(2)
        .padding(1)
        .layout(Layout::ChannelsFirst)
        .filter_layout(FilterLayout::Fchw)
        .activation(Activation::Relu);
    let images = Tensor::random(&device, windowpane::DType::F32, [2, 3, 32, 32], 1)?;
    let y = conv.forward(&images, &model["conv1.weight"], Some(&model["conv1.bias"]))?;
    println!("{:?} → {:?}", images.dims(), y.dims());

    // The same on images that are channels last, with the weights as they are.
    let images = images.to_layout(Layout::ChannelsFirst, Layout::ChannelsLast)?;
    let conv = conv.layout(Layout::ChannelsLast);
    let again = conv.forward(&images, &model["conv1.weight"], Some(&model["conv1.bias"]))?;
    let again = again.to_layout(Layout::ChannelsLast, Layout::ChannelsFirst)?;
    let pairs = y.to_vec::<f32>()?.into_iter().zip(again.to_vec::<f32>()?);
    let apart = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("channels last: {:?}, at most {apart} apart", again.dims());
    assert!(apart < 1e-5);
    Ok(())
}

/// Stands in for `safetensors.torch.save_file(model.state_dict(), "model.safetensors")`.
fn write_model(file: &std::path::Path) -> windowpane::Result<()> {
    let host = Device::host();
    let weight = Tensor::random(&host, windowpane::DType::F32, [8, 3, 3, 3], 7)?;
    let bias = Tensor::random(&host, windowpane::DType::F32, [8], 8)?;
    Tensor::write_safetensors(file, [("conv1.weight", &weight), ("conv1.bias", &bias)])
}
